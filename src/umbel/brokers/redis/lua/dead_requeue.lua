-- Delete the dead letters of an id, take it out of the revocations, and store postings.
-- ARGV: task id; version of the routes; then groups of postings, as in publish.lua
-- Returns 1; 0 where there is no such dead letter; 2 where the routes are others by now.
local id = ARGV[1]
local letters = call('ZRANGEBYLEX', key('dead-ids'), '[' .. id .. '\0', '(' .. id .. '\1')
if #letters == 0 then return 0 end
if version() ~= ARGV[2] then return 2 end
for _, member in ipairs(letters) do
  local n, queue = string.match(string.sub(member, #id + 2), '^([^%z]*)%z(.*)$')
  drop_letter(queue, n)
end
unrevoke({ id })
tell_groups(3)
store_groups(3)
return 1
