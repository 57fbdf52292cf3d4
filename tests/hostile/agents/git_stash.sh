# history
cd /app/repo; git stash list; git show refs/stash:answer > /app/answer
