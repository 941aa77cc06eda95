-- Take bindings away.
-- ARGV: members of the set of bindings
-- Returns how many there were.
return unbind(ARGV)
