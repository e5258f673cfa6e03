-- token_bucket and leaky_bucket: the theoretical arrival time, in microseconds, and after a space the
-- numerator of a fraction of the limit's denominator where it is not 0. Spans are such pairs too.
define.b = function()
  local function at_most(whole, fraction, other_whole, other_fraction)
    return whole < other_whole or (whole == other_whole and fraction <= other_fraction)
  end

  -- What the bucket holds, in terms of this check's limit: the fraction may be one of another limit's.
  local function held_by(spec, state)
    local held, fraction = state.held, state.fraction
    if fraction >= spec.denominator then
      local whole = floor(fraction / spec.denominator)
      held, fraction = held + whole, fraction - whole * spec.denominator
    end
    return held, fraction
  end

  return {
    -- What the hits need, what may be held with them, what they add, the capacity, and the most that is
    -- ever held; each with its fraction, unless the denominator is 1.
    read = function(spec, numbers)
      local denominator = numbers[1]
      spec.denominator = denominator
      if denominator == 1 then
        numbers = {1, numbers[2], 0, numbers[3], 0, numbers[4], 0, numbers[5], 0, numbers[6], 0}
      end
      spec.needs, spec.needs_fraction = numbers[2], numbers[3]
      spec.room, spec.room_fraction = numbers[4], numbers[5]
      spec.adds, spec.adds_fraction = numbers[6], numbers[7]
      spec.capacity, spec.capacity_fraction = numbers[8], numbers[9]
      spec.most, spec.most_fraction = numbers[10], numbers[11]
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
    advance = function(spec, state)
      local held, fraction = held_by(spec, state)
      if not at_most(held, fraction, spec.most, spec.most_fraction) then
        state.held, state.fraction = spec.capacity, spec.capacity_fraction
        return true
      end
    end,
    admits = function(spec, state)
      local held, fraction = held_by(spec, state)
      held, fraction = held + spec.needs, fraction + spec.needs_fraction
      if fraction >= spec.denominator then
        held, fraction = held + 1, fraction - spec.denominator
      end
      return at_most(held, fraction, spec.room, spec.room_fraction)
    end,
    charge = function(spec, state)
      local held, fraction = held_by(spec, state)
      if spec.direction == CHARGE then
        held, fraction = held + spec.adds, fraction + spec.adds_fraction
        if fraction >= spec.denominator then
          held, fraction = held + 1, fraction - spec.denominator
        end
        if not at_most(held, fraction, spec.most, spec.most_fraction) then
          held, fraction = spec.most, spec.most_fraction
        end
      else
        held, fraction = held - spec.adds, fraction - spec.adds_fraction
        if fraction < 0 then
          held, fraction = held - 1, fraction + spec.denominator
        end
        if held < 0 then
          held, fraction = 0, 0
        end
      end
      state.held, state.fraction = held, fraction
    end,
    push = function(spec, state)
      push(state.held)
      push(state.fraction)
    end,
    save = function(key, spec, state)
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
end
