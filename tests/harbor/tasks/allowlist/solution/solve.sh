echo Example > /tmp/title
