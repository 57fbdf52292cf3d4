# history
cd /app/repo; git reflog | head; git show 'HEAD@{1}:answer' > /app/answer
