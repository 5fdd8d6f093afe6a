package protocol

import "sync"

// maxSeen bounds the texts in a Seen, so that the other side can fill neither log nor memory.
const maxSeen = 1000

// Seen remembers texts that were logged.
type Seen struct {
	mu    sync.Mutex
	texts map[string]struct{}
}

// First reports whether a text is to be logged: it is new, and there is room for it.
func (s *Seen) First(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.texts[text]; known || len(s.texts) == maxSeen {
		return false
	}
	if s.texts == nil {
		s.texts = map[string]struct{}{}
	}
	s.texts[text] = struct{}{}
	return true
}
