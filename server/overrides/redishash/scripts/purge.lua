-- Removes records: ARGV is a field and a version for each. One that has changed since stays, and
-- so does one that has not ended by the clock of this server: that of the caller is wrong.
local horizon, now = number(get('h')), redis.call('TIME')[1] * 1000
for i = 1, #ARGV, 2 do
  local old = get(ARGV[i])
  if old and version(old) == number(ARGV[i + 1]) and number(string.match(old, '"until":(%d+)')) <= now then
    local use = '~' .. string.sub(ARGV[i], 2)
    redis.call('HDEL', KEYS[1], ARGV[i], use)
    horizon = math.max(horizon, version(old))
  end
end
local h = whole(horizon)
redis.call('HSET', KEYS[1], 'h', h)
return {'ok'}
