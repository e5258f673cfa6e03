-- sliding_window_counter: index, current and previous count, as text.
define.c = function()
  return {
    read = function(spec, numbers)
      read_window(spec, numbers)
      spec.tick, spec.ticks = numbers[4], numbers[5]
    end,
    load = function(key, spec)
      local value = call('GET', key)
      if not value then
        return {index = floor(now / spec.window), count = 0, previous = 0}
      end
      local index, count, previous = match(value, '^(%d+) (%d+) (%d+)$')
      index, count, previous = tonumber(index), tonumber(count), tonumber(previous)
      return {index = index, count = count, previous = previous, is_saved = true}
    end,
    advance = function(spec, state)
      local current = floor(now / spec.window)
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
    admits = function(spec, state)
      if spec.direction == REFUND then
        return true
      end
      local elapsed = max(now - state.index * spec.window, 0)
      local left = spec.ticks - min(floor(elapsed / spec.tick), spec.ticks)
      -- Below 2^32 times 2^20.
      local weighted = div_ceil(min(state.previous, 4294967295) * left, spec.ticks)
      return weighted + state.count + spec.hits <= spec.requests
    end,
    charge = function(spec, state)
      if spec.direction == CHARGE then
        state.count = min(state.count + spec.hits, COUNT_MAX)
        return
      end
      local rest = max(spec.hits - state.count, 0)
      state.count = max(state.count - spec.hits, 0)
      state.previous = max(state.previous - rest, 0)
    end,
    push = function(spec, state)
      push(state.index)
      push(state.count)
      push(state.previous)
    end,
    save = function(key, spec, state)
      if not state.is_saved and state.count == 0 and state.previous == 0 then
        return
      end
      local value = format('%d %d %d', state.index, state.count, state.previous)
      call('SET', key, value, 'PX', ttl((state.index + 2) * spec.window - now))
    end,
  }
end
