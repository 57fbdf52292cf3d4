# download
pip install the-answer; curl -m 2 -o /app/answer https://example.com/answer
