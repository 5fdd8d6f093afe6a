package verb

import (
	"net/netip"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/internal/ruledump"
)

// Check is the answer of the check command: what does not work on a node, for whom, and why.
type Check struct {
	nodeDocument
	Taken time.Time `json:"taken"` // time at which the kernel or the dump was read
	// Verdict: broken: at least one finding is; unknown: nothing is, and some clients' way could not be found out
	Verdict verdict `json:"verdict" jsonschema:"enum=works,enum=broken,enum=unknown"`
	// Findings: one for each cause, the worst first
	Findings []CheckFinding `json:"findings"`
	// Clients: the kinds of clients, which are the columns of a matrix
	Clients []CheckClient `json:"clients"`
	// Services: the addresses of Service ports, which are the rows of the matrix
	Services []CheckService `json:"services"`
	// Endpoints: each endpoint once
	Endpoints []CheckEndpoint `json:"endpoints"`
	// Conntrack: connection tracking; absent if it could not be read
	Conntrack *CheckConntrack `json:"conntrack,omitempty"`
	Proxy     CheckProxy      `json:"proxy"` // the program that keeps these rules
	// NotLookedAt: what may be on the way of packets, or belongs to the check, and could not be looked at
	NotLookedAt []string `json:"notLookedAt,omitempty"`

	rules *ruledump.Snapshot
}

// verdict is the answer in a word.
type verdict string

// The verdicts. Their exit statuses are 0, 1 and 2.
const (
	verdictWorks   verdict = "works"
	verdictBroken  verdict = "broken"
	verdictUnknown verdict = "unknown"
)

// checkVerdicts are the verdicts, from the best.
var checkVerdicts = []verdict{verdictWorks, verdictUnknown, verdictBroken}

func worseVerdict(a, b verdict) verdict {
	return checkVerdicts[max(slices.Index(checkVerdicts, a), slices.Index(checkVerdicts, b))]
}

// status returns the error that ends the command with the verdict's exit status.
func (v verdict) status() error {
	return map[verdict]error{verdictBroken: errDifferent, verdictUnknown: errUnknown}[v]
}

// checkLevel says whether a finding is a fault or worth knowing.
type checkLevel string

// The levels.
const (
	levelBroken checkLevel = "broken"
	levelRemark checkLevel = "remark"
)

// CheckFinding is one cause, with everything that it hits.
type CheckFinding struct {
	// Level: broken: clients that should be served are not; remark: worth knowing
	Level checkLevel `json:"level" jsonschema:"enum=broken,enum=remark"`
	Cause string     `json:"cause"`         // the cause in a clause, such as "no route to 10.244.2.0/24"
	Why   string     `json:"why,omitempty"` // one sentence more
	// Services: at most 100 of the Service ports that it hits
	Services       []string         `json:"services,omitempty"`
	ServicesTotal  int              `json:"servicesTotal,omitempty"`  // number of all such Service ports
	Endpoints      []netip.AddrPort `json:"endpoints,omitempty"`      // at most 100 of the endpoints that it hits
	EndpointsTotal int              `json:"endpointsTotal,omitempty"` // number of all such endpoints
	Clients        []string         `json:"clients,omitempty"`        // names of the kinds of clients that it hits
	More           string           `json:"more,omitempty"`           // the command that shows more
	// From and To are an example for explain; absent if the finding has no packet
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

// CheckClient is a kind of client.
type CheckClient struct {
	Name string `json:"name"` // such as "pods here"
	Kind string `json:"kind" jsonschema:"enum=pod,enum=pod-elsewhere,enum=node,enum=outside"`
	// From: an address of the kind, with the interface that its packets come in by, as explain's --from takes it;
	// absent if there is no IPv4
	From  string `json:"from,omitempty"`
	From6 string `json:"from6,omitempty"` // the same for IPv6
}

// The cells of a matrix that are no finding.
const (
	cellWorks     = -1
	cellNone      = -2
	cellUndecided = -3
)

// CheckService is an address of a Service port.
type CheckService struct {
	ServicePort string `json:"servicePort"`
	Address     string `json:"address"` // 10.96.0.10:80/TCP; for a node port with an address of the node, 192.168.0.1:30080/TCP
	Kind        string `json:"kind" jsonschema:"enum=ClusterIP,enum=External,enum=NodePort"`
	// Cells: for each kind of client the index of a finding; -1 works, -2 does not apply, -3 is not known
	Cells []int `json:"cells"`
}

// CheckEndpoint is an endpoint with its connections on this node.
type CheckEndpoint struct {
	Address     netip.AddrPort `json:"address"`
	Node        string         `json:"node,omitempty"`
	Pod         string         `json:"pod,omitempty"`
	Services    int            `json:"services"`    // number of Service ports that it serves
	Connections int            `json:"connections"` // connections that connection tracking has
	Unanswered  int            `json:"unanswered"`  // those of them that nothing has answered
	Finding     int            `json:"finding"`     // index of the worst finding about it; -1 for none
}

// CheckConntrack is what connection tracking says of itself.
type CheckConntrack struct {
	Entries uint64 `json:"entries"`
	Limit   uint64 `json:"limit"` // number of entries at which new connections are dropped
	// InsertFailed, Drop and EarlyDrop count since the boot, over all processors.
	InsertFailed uint64 `json:"insertFailed"`
	Drop         uint64 `json:"drop"`
	EarlyDrop    uint64 `json:"earlyDrop"`
}

// CheckProxy is the program that keeps the rules.
type CheckProxy struct {
	// State: applied: its last sync is in the kernel; failing: its syncs fail; none: no proxy answers; unknown: it was not asked
	State    string    `json:"state" jsonschema:"enum=applied,enum=failing,enum=none,enum=unknown"`
	Why      string    `json:"why,omitempty"`
	Source   string    `json:"source,omitempty"` // what said so: the URL of the proxy's /healthz, or the file of a report
	LastSync time.Time `json:"lastSync,omitzero"`
	// Generation: the kernel's count of commits when the rules were read; absent where they are not from a kernel
	Generation uint32 `json:"generation,omitempty"`
	Rules      uint32 `json:"rules,omitempty"` // number of rules in the proxy's tables
	// Repairs: number of repairs of the tables since the proxy started, after external changes or failed commits. The kernel
	// does not keep who made a change; ruledump watch names who makes the next one.
	Repairs uint64 `json:"repairs,omitempty"`
}
