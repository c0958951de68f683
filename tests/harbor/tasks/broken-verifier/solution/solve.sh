echo anything > /tmp/anything
