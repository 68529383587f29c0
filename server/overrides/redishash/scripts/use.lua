-- Records when overrides were last used: ARGV is an id and Unix seconds for each. One that
-- the hash does not have gets none, so that there are no more of them than records.
for i = 1, #ARGV, 2 do
  local field, seconds = '~' .. ARGV[i], number(ARGV[i + 1])
  local text = whole(seconds)
  if get(':' .. ARGV[i]) and number(get(field)) < seconds then
    redis.call('HSET', KEYS[1], field, text)
  end
end
return {'ok'}
