touch /tmp/here
