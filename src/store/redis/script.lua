-- Decides whole requests: for each, every limit is checked first; then all are charged, or none.
--
-- The arithmetic is that of src/algorithm/, and a property test holds the two together. Time is whole
-- microseconds. Numbers here are doubles, so every intermediate stays below 2^53, where they are exact.
--
-- KEYS: every counter once.
-- ARGV: the time, where 0 stands for this server's clock; the number of requests; then for each
--   request: the number of its checks, and 1 if it checks a counter twice, else 0; then for each check:
--   number of its key, role (0 hard, 1 shadow, 2 and up the number of a quota), 1 if denied hits are
--   charged, direction (0 look, 1 charge, 2 refund), algorithm (z, f, c, l, b), and the algorithm's own.
-- Reply: the time; then for each request 1 if it is denied, else 0, and for each of its checks the
--   counter's state before it, as the algorithm has it.

local LOOK, CHARGE, REFUND = 0, 1, 2
local HARD, SHADOW = 0, 1

-- As in src/algorithm/: counts saturate here.
local COUNT_MAX = 2 ^ 36

local floor, min, max = math.floor, math.min, math.max
local format, match = string.format, string.match
local call = redis.call

local now = tonumber(ARGV[1])
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local reply = {now}
local replies = 1
local argument = 1

local function next_number()
  argument = argument + 1
  return tonumber(ARGV[argument])
end

local function push(number)
  replies = replies + 1
  reply[replies] = number
end

-- A key lives a second longer than it has to, so that a clock which steps back by less finds it.
local function ttl(micros)
  return format('%d', floor(micros / 1000) + 1001)
end

local function div_ceil(a, b)
  local up = a + b - 1
  return (up - up % b) / b
end

-- Each algorithm: `read` its numbers from ARGV; `load` the state; `advance` it to now, and tell if it
-- was absurdly far ahead and had to be pulled back; say whether a check `admits`; `charge` it; `push`
-- what the answer is made of; `save` it.
local algorithms = {}

local function read_window(check)
  check.hits, check.requests, check.window = next_number(), next_number(), next_number()
end

local function nothing() end

-- A limit of zero requests, which needs no counter.
algorithms.z = {
  read = nothing,
  load = function() return {} end,
  advance = nothing,
  admits = function(check) return check.direction == REFUND end,
  charge = nothing,
  push = nothing,
  save = nothing,
}

-- fixed_window: one integer, (index mod 2^16) * 2^37 + count. The key is gone long before the index
-- could be mistaken for one of 2^16 windows later.
local INDEXES = 65536
local COUNTS = 2 ^ 37
-- What is at most this much behind was not expired yet; anything else is ahead.
local BEHIND_MAX = 500

algorithms.f = {
  read = read_window,
  load = function(key, check)
    local current = floor(now / check.window)
    local value = tonumber(call('GET', key))
    if not value then
      return {index = current, count = 0}
    end
    local count = value % COUNTS
    local ahead = ((value - count) / COUNTS - current) % INDEXES
    if ahead >= INDEXES - BEHIND_MAX then
      ahead = -1
    end
    local index = current + ahead
    return {index = index, count = count, saved_index = index, saved_count = count}
  end,
  advance = function(check, state)
    local current = floor(now / check.window)
    if state.index < current or state.count == 0 then
      state.index, state.count = current, 0
    elseif state.index > current + 1 then
      state.index = current
      return true
    end
  end,
  admits = function(check, state)
    return check.direction == REFUND or state.count + check.hits <= check.requests
  end,
  charge = function(check, state)
    if check.direction == CHARGE then
      state.count = min(state.count + check.hits, COUNT_MAX)
    else
      state.count = max(state.count - check.hits, 0)
    end
  end,
  push = function(check, state)
    push(state.index)
    push(state.count)
  end,
  save = function(key, check, state)
    if not state.saved_index and state.count == 0 then
      return
    end
    if state.index == state.saved_index then
      -- The key lives as long as it has to as it is.
      call('INCRBY', key, format('%d', state.count - state.saved_count))
      return
    end
    local value = (state.index % INDEXES) * COUNTS + state.count
    local left = (state.index + 1) * check.window - now
    call('SET', key, format('%d', value), 'PX', ttl(left))
  end,
}

-- sliding_window_counter: index, current and previous count, as text.
algorithms.c = {
  read = function(check)
    read_window(check)
    check.tick, check.ticks = next_number(), next_number()
  end,
  load = function(key, check)
    local value = call('GET', key)
    if not value then
      return {index = floor(now / check.window), count = 0, previous = 0}
    end
    local index, count, previous = match(value, '^(%d+) (%d+) (%d+)$')
    index, count, previous = tonumber(index), tonumber(count), tonumber(previous)
    return {index = index, count = count, previous = previous, is_saved = true}
  end,
  advance = function(check, state)
    local current = floor(now / check.window)
    if state.count == 0 and state.previous == 0 then
      state.index = current
    elseif state.index + 1 == current then
      state.index, state.count, state.previous = current, 0, state.count
    elseif state.index < current then
      state.index, state.count, state.previous = current, 0, 0
    elseif state.index > current + 1 then
      state.index = current
      return true
    end
  end,
  admits = function(check, state)
    if check.direction == REFUND then
      return true
    end
    local elapsed = max(now - state.index * check.window, 0)
    local left = check.ticks - min(floor(elapsed / check.tick), check.ticks)
    -- Below 2^32 times 2^20.
    local weighted = div_ceil(min(state.previous, 4294967295) * left, check.ticks)
    return weighted + state.count + check.hits <= check.requests
  end,
  charge = function(check, state)
    if check.direction == CHARGE then
      state.count = min(state.count + check.hits, COUNT_MAX)
      return
    end
    local rest = max(check.hits - state.count, 0)
    state.count = max(state.count - check.hits, 0)
    state.previous = max(state.previous - rest, 0)
  end,
  push = function(check, state)
    push(state.index)
    push(state.count)
    push(state.previous)
  end,
  save = function(key, check, state)
    if not state.is_saved and state.count == 0 and state.previous == 0 then
      return
    end
    local value = format('%d %d %d', state.index, state.count, state.previous)
    call('SET', key, value, 'PX', ttl((state.index + 2) * check.window - now))
  end,
}

-- sliding_window_log: a list of instants, oldest first, one per hit. Instants never fall, because the
-- key's time never runs backwards, so that a list is as good as a sorted set, at a tenth of the memory.
local CHUNK = 1000

local function log_push(key, at, hits)
  local instant = format('%d', at)
  while hits > 0 do
    local instants = {}
    for i = 1, min(hits, CHUNK) do
      instants[i] = instant
    end
    call('RPUSH', key, unpack(instants))
    hits = hits - #instants
  end
end

local function log_at(key, position)
  return tonumber(call('LINDEX', key, position))
end

algorithms.l = {
  read = read_window,
  load = function(key, check)
    local newest = log_at(key, -1)
    return {key = key, total = newest and call('LLEN', key) or 0, newest = newest or 0}
  end,
  advance = function(check, state)
    local key = state.key
    if not key then
      return
    end
    if state.total > 0 and state.newest > now + check.window then
      call('DEL', key)
      log_push(key, now, state.total)
      state.newest = now
      call('PEXPIRE', key, ttl(check.window))
    end
    local expired = now - check.window
    while state.total > 0 do
      local pops = min(state.total, 128)
      while pops > 1 and log_at(key, pops - 1) > expired do
        pops = floor(pops / 2)
      end
      if log_at(key, pops - 1) > expired then
        return
      end
      call('LPOP', key, pops)
      state.total = state.total - pops
    end
    state.newest = 0
  end,
  admits = function(check, state)
    return check.direction == REFUND or state.total + check.hits <= check.requests
  end,
  charge = function(check, state)
    local key = state.key
    if check.direction == CHARGE then
      local hits = min(check.hits, check.requests)
      local dropped = max(state.total + hits - check.requests, 0)
      local at = max(state.newest, now)
      if key then
        log_push(key, at, hits)
        if dropped > 0 then
          call('LTRIM', key, dropped, -1)
        end
      else
        local of_listed = min(dropped, state.listed)
        state.offset, state.listed = state.offset + of_listed, state.listed - of_listed
      end
      state.total = state.total + hits - dropped
      state.newest = at
      return
    end
    local hits = min(check.hits, state.total)
    state.total = state.total - hits
    if key and hits > 0 then
      call('RPOP', key, hits)
      state.newest = log_at(key, -1) or 0
    elseif not key and state.total <= state.listed then
      state.listed = state.total
      state.newest = state.total > 0 and log_at(check.key, state.offset + state.total - 1) or 0
    end
  end,
  -- The instant that decides the answer is that of the hit whose leaving makes room, or the newest
  -- one left after a refund.
  push = function(check, state)
    local decisive = 0
    if check.direction == REFUND then
      decisive = state.total - check.hits
    elseif state.total + check.hits > check.requests then
      decisive = state.total + check.hits - check.requests
      if check.charge_denied and check.direction == CHARGE then
        decisive = decisive + check.hits
      end
    end
    decisive = max(min(decisive, state.total), 0)
    local instant = 0
    if decisive > (state.listed or state.total) then
      instant = state.newest
    elseif decisive > 0 then
      instant = log_at(check.key, (state.offset or 0) + decisive - 1)
    end
    push(state.total)
    push(state.newest)
    push(decisive)
    push(instant)
  end,
  save = function(key, check, state)
    if state.total > 0 then
      call('PEXPIRE', key, ttl(state.newest + check.window - now))
    end
  end,
}

-- token_bucket and leaky_bucket: the theoretical arrival time, in microseconds, and after a space the
-- numerator of a fraction of the limit's denominator where it is not 0. Spans are such pairs too.
local function at_most(whole, fraction, other_whole, other_fraction)
  return whole < other_whole or (whole == other_whole and fraction <= other_fraction)
end

-- What the bucket holds, in terms of this check's limit: the fraction may be one of another limit's.
local function held_by(check, state)
  local held, fraction = state.held, state.fraction
  if fraction >= check.denominator then
    local whole = floor(fraction / check.denominator)
    held, fraction = held + whole, fraction - whole * check.denominator
  end
  return held, fraction
end

algorithms.b = {
  read = function(check)
    check.denominator = next_number()
    -- What the hits need, what may be held with them, what they add, and the capacity.
    check.needs, check.needs_fraction = next_number(), next_number()
    check.room, check.room_fraction = next_number(), next_number()
    check.adds, check.adds_fraction = next_number(), next_number()
    check.capacity, check.capacity_fraction = next_number(), next_number()
    check.most, check.most_fraction = next_number(), next_number()
  end,
  load = function(key)
    local value = call('GET', key)
    local tat, fraction = tonumber(value), 0
    if value and not tat then
      tat, fraction = match(value, '^(%d+) (%d+)$')
      tat, fraction = tonumber(tat), tonumber(fraction)
    end
    if not tat or tat < now then
      return {held = 0, fraction = 0}
    end
    return {held = tat - now, fraction = fraction}
  end,
  advance = function(check, state)
    local held, fraction = held_by(check, state)
    if not at_most(held, fraction, check.most, check.most_fraction) then
      state.held, state.fraction = check.capacity, check.capacity_fraction
      return true
    end
  end,
  admits = function(check, state)
    local held, fraction = held_by(check, state)
    held, fraction = held + check.needs, fraction + check.needs_fraction
    if fraction >= check.denominator then
      held, fraction = held + 1, fraction - check.denominator
    end
    return at_most(held, fraction, check.room, check.room_fraction)
  end,
  charge = function(check, state)
    local held, fraction = held_by(check, state)
    if check.direction == CHARGE then
      held, fraction = held + check.adds, fraction + check.adds_fraction
      if fraction >= check.denominator then
        held, fraction = held + 1, fraction - check.denominator
      end
      if not at_most(held, fraction, check.most, check.most_fraction) then
        held, fraction = check.most, check.most_fraction
      end
    else
      held, fraction = held - check.adds, fraction - check.adds_fraction
      if fraction < 0 then
        held, fraction = held - 1, fraction + check.denominator
      end
      if held < 0 then
        held, fraction = 0, 0
      end
    end
    state.held, state.fraction = held, fraction
  end,
  push = function(check, state)
    push(state.held)
    push(state.fraction)
  end,
  save = function(key, check, state)
    if state.held == 0 and state.fraction == 0 then
      call('DEL', key)
    elseif state.fraction == 0 then
      call('SET', key, format('%d', now + state.held), 'PX', ttl(state.held))
    else
      local value = format('%d %d', now + state.held, state.fraction)
      call('SET', key, value, 'PX', ttl(state.held + 1))
    end
  end,
}

-- States by key number, as charged so far, and the last check that changed each.
local states = {}
local changed_by = {}

local function read_check()
  local check = {
    number = next_number(),
    role = next_number(),
    charge_denied = next_number() == 1,
    direction = next_number(),
  }
  check.key = KEYS[check.number]
  argument = argument + 1
  check.algorithm = algorithms[ARGV[argument]]
  check.algorithm.read(check)
  return check
end

local function state_of(check)
  local state = states[check.number]
  if not state then
    state = check.algorithm.load(check.key, check)
    states[check.number] = state
  end
  if check.algorithm.advance(check, state) then
    changed_by[check.number] = check
  end
  return state
end

-- To be charged on trial. A log's has no key: of its hits, those `listed` are the list's from `offset`
-- on, and the rest are the newest.
local function copy(state)
  local copied = {}
  for field, value in pairs(state) do
    copied[field] = value
  end
  copied.key, copied.offset, copied.listed = nil, 0, state.total
  return copied
end

-- Checks in turn; a counter that the request checks twice is seen as its first check leaves it.
local function check_all(checks, has_twins)
  local seen = {}
  for _, check in ipairs(checks) do
    local state = state_of(check)
    if has_twins then
      state = seen[check.number] or copy(state)
      seen[check.number] = state
      check.algorithm.advance(check, state)
    end
    check.algorithm.push(check, state)
    check.admitted = check.algorithm.admits(check, state)
    if has_twins and check.direction ~= LOOK and (check.admitted or check.charge_denied) then
      check.algorithm.charge(check, state)
    end
  end
end

-- One hard limit over denies, or every quota over.
local function is_denied(checks)
  local quotas = {}
  for _, check in ipairs(checks) do
    if check.role == HARD then
      if not check.admitted then
        return true
      end
    elseif check.role ~= SHADOW then
      quotas[check.role] = quotas[check.role] or not check.admitted
    end
  end
  local all_over = next(quotas) ~= nil
  for _, over in pairs(quotas) do
    all_over = all_over and over
  end
  return all_over
end

local function decide()
  local count, has_twins = next_number(), next_number() == 1
  push(0)
  local verdict = replies
  local checks = {}
  for i = 1, count do
    checks[i] = read_check()
  end
  check_all(checks, has_twins)
  local denied = is_denied(checks)
  for _, check in ipairs(checks) do
    local is_charged = check.charge_denied or (check.admitted and not denied)
    if is_charged and check.direction ~= LOOK then
      check.algorithm.charge(check, state_of(check))
      changed_by[check.number] = check
    end
  end
  if denied then
    reply[verdict] = 1
  end
end

for _ = 1, next_number() do
  decide()
end
for number, check in pairs(changed_by) do
  check.algorithm.save(check.key, check, states[number])
end
return reply
