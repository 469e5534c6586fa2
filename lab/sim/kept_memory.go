package sim

// The values in memory are evicted by the clock algorithm: a hand advances through the ring,
// skips values that were used since its last visit, and evicts the first value that was not
// used.

// claim returns free memory for a client's values, or nil if there is none.
func (s *Kept) claim(client int) []float32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.ring)
	if n >= s.room {
		return nil
	}
	s.ring = append(s.ring, int32(client))
	return s.memory[n*s.floats : (n+1)*s.floats : (n+1)*s.floats]
}

// steal gives a client the memory of another client that was not used recently. It does
// nothing if all other clients in memory are in use or if the store has no memory.
func (s *Kept) steal(client int) error {
	place, victim := s.victim()
	if place < 0 {
		return nil
	}
	// s.mu must not be held during a write to the file, so the victim stays locked and in the
	// ring until its values are in the file.
	v := &s.clients[victim]
	defer v.mu.Unlock()
	if v.dirty {
		if err := s.write(victim, v.value); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.ring[place] = int32(client)
	s.mu.Unlock()
	s.clients[client].value, v.value, v.used = v.value, nil, false
	return nil
}

// victim locks and returns a client that was not used since the hand last passed it, and
// its position in the ring. The position is -1 if there is no such client.
func (s *Kept) victim() (place, client int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range 2 * len(s.ring) {
		place, client = s.hand, int(s.ring[s.hand])
		s.hand = (s.hand + 1) % len(s.ring)
		v := &s.clients[client]
		if !v.mu.TryLock() { // another goroutine is using the client
			continue
		}
		if !v.used {
			return place, client
		}
		v.used = false
		v.mu.Unlock()
	}
	return -1, 0
}
