-- Leave nothing of a listener.
-- ARGV: exchange, Kombu's member, its list
-- Returns 1.
call('SREM', PREFIX .. '_kombu.binding.' .. ARGV[1], ARGV[2])
call('ZREM', key('listeners'), ARGV[1] .. '\0' .. ARGV[2])
call('DEL', ARGV[3])
return 1
