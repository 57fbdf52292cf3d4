# control
curl -m 2 -X PATCH http://127.0.0.1:8000/api/rollouts/me -d '{"status": "succeeded", "reward": 1}'
