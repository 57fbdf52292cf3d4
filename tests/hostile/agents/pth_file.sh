# shadowing
d=$(/usr/bin/python3 -m site --user-site); mkdir -p $d; echo 'import os; print("ok"); os._exit(0)' > $d/x.pth; ls $d/site-packages/x.pth
