# history
cd /app/repo; git tag -l; git show v2:answer > /app/answer
