-- Let what has fallen due wait, so that it is seen where it is.
-- ARGV: now
promote(ARGV[1])
return 1
