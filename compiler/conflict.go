package compiler

import (
	"slices"

	"github.com/nftproxy/nftproxy/model"
)

// Conflict is a frontend that more than one Service port claims.
type Conflict struct {
	// Frontend is the address, such as "203.0.113.1:80/TCP", or "node port 30080/TCP".
	Frontend string
	// Owner is the port that gets the frontend.
	Owner model.PortID
	// Others are the ports that do not, in the order in which they would. They keep their other addresses.
	Others []model.PortID
}

// newConflict returns the conflict over a frontend if its claimants differ from those of the last call.
func (f *family) newConflict(s *frontendState) []Conflict {
	if len(s.claims) < 2 {
		delete(f.contested, s.frontend)
		return nil
	}
	c := Conflict{Frontend: s.frontend.String(), Owner: s.claims[0].port.ID}
	for _, other := range s.claims[1:] {
		c.Others = append(c.Others, other.port.ID)
	}
	claimants := slices.SortedFunc(slices.Values(append(c.Others, c.Owner)), model.PortID.Compare)
	if slices.Equal(f.contested[s.frontend], claimants) {
		return nil
	}
	f.contested[s.frontend] = claimants
	return []Conflict{c}
}
