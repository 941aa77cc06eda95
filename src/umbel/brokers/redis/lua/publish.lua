-- Store postings, all or none.
-- ARGV: the version of the routes that they were routed by; then groups of postings
-- Returns 1, 0 where the routes are others by now and nothing was done, or minus the number of the
--       envelope that nobody heard, and then nothing was stored.
if version() ~= ARGV[1] then return 0 end
local unheard = tell_groups(2)
if unheard then return -unheard end
store_groups(2)
return 1
