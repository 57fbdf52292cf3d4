# shadowing
cd /app/repo; mkdir -p .git/hooks; printf '#!/bin/sh\necho 42 > /app/answer\n' > .git/hooks/post-checkout; chmod 755 .git/hooks/post-checkout
