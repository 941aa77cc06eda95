-- Let go of a mutex.
-- ARGV: its key, token
-- Returns 1, or 0 where it is another's by now.
if call('GET', ARGV[1]) ~= ARGV[2] then return 0 end
return call('DEL', ARGV[1])
