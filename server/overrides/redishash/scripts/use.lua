-- Records when overrides were last used: ARGV is an id and Unix seconds for each. One that
-- the hash does not have gets none, so that there are no more of them than records.
for i = 1, #ARGV, 2 do
  local field, seconds = '~' .. ARGV[i], number(ARGV[i + 1])
  if get(':' .. ARGV[i]) and number(get(field)) < seconds then
    redis.call('HSET', hash, field, whole(seconds))
  end
end
return {'ok'}
