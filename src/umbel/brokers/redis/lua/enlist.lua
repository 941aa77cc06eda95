-- Make a run, and an owner of it (empty: none), known and alive.
-- ARGV: run, owner, info, now, lease time
-- Returns 1, or 0 for a run or an owner that has ended.
local run, owner = ARGV[1], ARGV[2]
local rkey = key('run:' .. run)
if call('ZSCORE', key('ended'), run) then return 0 end
if owner ~= '' and call('SISMEMBER', rkey .. ':gone', owner) == 1 then return 0 end
if call('EXISTS', rkey) == 0 then
  call('ZADD', key('runs'), num(call('INCR', key('n'))), run)
end
call('HSET', rkey, 'info', ARGV[3], 'seen', ARGV[4], 'lease', ARGV[5])
if owner ~= '' and call('SADD', rkey .. ':owners', owner) == 1 then
  call('HSET', key('owner:' .. owner), 'run', run, 'begin', 0, 'last', 0, 'turn', 0)
end
return 1
