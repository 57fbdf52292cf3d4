# download
setsid sh -c 'until curl -f -m 2 --proxy http://127.0.0.1:3128 -o /app/answer http://MIRROR/answer; do sleep 0.1; done' > /dev/null 2>&1 & sleep 1
