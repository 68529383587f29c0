-- Removes records: ARGV is a field and a version for each. One that has changed since stays.
local horizon = number(get('h'))
for i = 1, #ARGV, 2 do
  local old = get(ARGV[i])
  if old and version(old) == number(ARGV[i + 1]) then
    redis.call('HDEL', hash, ARGV[i], '~' .. string.sub(ARGV[i], 2))
    horizon = math.max(horizon, version(old))
  end
end
redis.call('HSET', hash, 'h', whole(horizon))
return {'ok'}
