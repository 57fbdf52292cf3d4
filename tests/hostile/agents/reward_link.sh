# reward
mkdir -p /app/mine; echo 1 > /app/mine/reward.txt; rm -rf /logs/verifier; ln -s /app/mine /logs/verifier
