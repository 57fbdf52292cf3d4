# history
cd /app/repo; git log --all -p --format=%h | grep -o '[0-9]*' | tail -1 > /app/answer
