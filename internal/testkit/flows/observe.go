package flows

import "time"

// soon is how long Observe waits for an answer where none is expected: shorter than a flow of a file does,
// since it is for those who send very many.
const soon = 150 * time.Millisecond

// Observe makes one connection and returns the indexes of the expectations that it meets, and in
// words what became of it. It is for connections that may end in one of several ways. What
// flow expects itself does not matter, nor does Sticky, which takes more than one connection to tell.
func (r *Runner) Observe(flow Flow, expectations []Expectation) (met []int, became string, err error) {
	s, err := r.sender(flow)
	if err != nil {
		return nil, "", err
	}
	for _, e := range expectations {
		if e.Result == Untouched {
			if err := s.await(); err != nil {
				return nil, "", err
			}
		}
	}
	err = s.host.Do(func() error {
		if s.from, err = s.source(); err != nil {
			return err
		}
		o := s.attempt(patienceFor(expectations))
		became = o.String()
		for i, e := range expectations {
			s.flow.Expect = e
			if s.judge(o) == "" {
				met = append(met, i)
			}
		}
		return nil
	})
	return met, became, err
}

// patienceFor is how long to wait for an answer: not long where silence alone is expected, a
// while where it is among what is expected.
func patienceFor(expectations []Expectation) time.Duration {
	silences := 0
	for _, e := range expectations {
		if e.Result == Dropped {
			silences++
		}
	}
	switch silences {
	case 0:
		return patience
	case len(expectations):
		return soon
	}
	return ShortPatience
}
