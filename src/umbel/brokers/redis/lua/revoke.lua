-- Append to the log of revocations.
-- ARGV: now; a name under which it is done once, and milliseconds for which that holds (empty:
--       always); then of each entry three: terminate (0 or 1), signal, task id
-- Returns 1, or 0 where it was done before.
if ARGV[2] ~= '' and not call('SET', key('heard:' .. ARGV[2]), '', 'NX', 'PX', ARGV[3]) then
  return 0
end
for i = 4, #ARGV, 3 do
  local n = num(call('INCR', key('revocations:version')))
  local entry = table.concat({ n, ARGV[1], ARGV[i], ARGV[i + 1], ARGV[i + 2] }, '\0')
  call('ZADD', key('revocations'), n, entry)
end
return 1
