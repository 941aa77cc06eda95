-- Store results by Celery's keys, and tell who listens. One step.
--
-- KEYS[i]        the key of result i: <prefix>celery-task-meta-<task id>
-- ARGV[3i - 2]   its record
-- ARGV[3i - 1]   milliseconds that it is kept, from 1; '' is for ever
-- ARGV[3i]       the older record, not JSON, that the caller has looked at and that may give way;
--                '' is none
--
-- Returns one number per result:
--   1  stored, and published on the channel that is named as the key
--   0  a SUCCESS is there, and stays
--   2  what is there can't be read here (compressed, or not JSON): nothing is done; look at it

-- Celery and Umbel write the state first, so that a few bytes of a large record are enough.
local HEAD = 127

local function state_of(key)
    local head = redis.call('GETRANGE', key, 0, HEAD)
    if head == '' then
        return ''
    end
    local state = string.match(head, '^%s*{%s*"status"%s*:%s*"([^"\\]*)"')
    if state then
        return state
    end
    if string.match(head, '^%s*{') then
        local fine, record = pcall(cjson.decode, redis.call('GET', key))
        if fine and type(record) == 'table' and type(record.status) == 'string' then
            return record.status
        end
    end
    return nil
end

local function keep(key, record, life, known)
    local state = state_of(key)
    if state == 'SUCCESS' then
        return 0
    end
    if state == nil and (known == '' or redis.call('GET', key) ~= known) then
        return 2
    end
    if life == '' then
        redis.call('SET', key, record)
    else
        redis.call('SET', key, record, 'PX', life)
    end
    redis.call('PUBLISH', key, record)
    return 1
end

local done = {}
for i, key in ipairs(KEYS) do
    done[i] = keep(key, ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i])
end
return done
