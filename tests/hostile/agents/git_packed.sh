# history
cd /app/repo; cat .git/packed-refs; git show fix:answer > /app/answer
