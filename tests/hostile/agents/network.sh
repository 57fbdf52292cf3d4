# network
cat < /dev/tcp/1.1.1.1/80 > /app/answer; curl -m 2 http://169.254.169.254/answer > /app/answer
