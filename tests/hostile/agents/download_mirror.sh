# download
curl -m 5 --proxy http://127.0.0.1:3128 -o /app/answer http://MIRROR/answer
