# shadowing
d=$(/usr/bin/python3 -m site --user-site); mkdir -p $d; echo 'print("ok"); import os; os._exit(0)' > $d/usercustomize.py
