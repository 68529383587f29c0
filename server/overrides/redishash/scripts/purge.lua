-- Removes records: ARGV is a field and a version for each. One that has changed since stays, and
-- so does one that has not ended by the clock of this server: that of the caller is wrong.
local horizon, now = number(get('h')), redis.call('TIME')[1] * 1000
for i = 1, #ARGV, 2 do
  local old = get(ARGV[i])
  if old and version(old) == number(ARGV[i + 1]) and number(string.match(old, '"until":(%d+)')) <= now then
    redis.call('HDEL', hash, ARGV[i], '~' .. string.sub(ARGV[i], 2))
    horizon = math.max(horizon, version(old))
  end
end
redis.call('HSET', hash, 'h', whole(horizon))
return {'ok'}
