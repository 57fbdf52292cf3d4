# history
cd /app/repo; git cat-file --batch-all-objects --batch-check | while read o t s; do [ $t = blob ] && git cat-file -p $o; done | grep -x 42 > /app/answer
