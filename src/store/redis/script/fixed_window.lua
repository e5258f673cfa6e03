-- fixed_window: one integer, (index mod 2^16) * 2^37 + count. The key is gone long before the index
-- could be mistaken for one of 2^16 windows later.
define.f = function()
  local INDEXES = 65536
  local COUNTS = 2 ^ 37
  -- What is at most this much behind was not expired yet; anything else is ahead.
  local BEHIND_MAX = 500

  return {
    read = read_window,
    load = function(key, spec)
      local current = floor(now / spec.window)
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
    advance = function(spec, state)
      local current = floor(now / spec.window)
      if state.index < current or state.count == 0 then
        state.index, state.count = current, 0
      elseif state.index > current + 1 then
        state.index = current
        return true
      end
    end,
    admits = function(spec, state)
      return spec.direction == REFUND or state.count + spec.hits <= spec.requests
    end,
    charge = function(spec, state)
      if spec.direction == CHARGE then
        state.count = min(state.count + spec.hits, COUNT_MAX)
      else
        state.count = max(state.count - spec.hits, 0)
      end
    end,
    push = function(spec, state)
      push(state.index)
      push(state.count)
    end,
    save = function(key, spec, state)
      if not state.saved_index and state.count == 0 then
        return
      end
      if state.index == state.saved_index then
        -- The key lives as long as it has to as it is.
        call('INCRBY', key, format('%d', state.count - state.saved_count))
        return
      end
      local value = (state.index % INDEXES) * COUNTS + state.count
      local left = (state.index + 1) * spec.window - now
      call('SET', key, format('%d', value), 'PX', ttl(left))
    end,
  }
end
