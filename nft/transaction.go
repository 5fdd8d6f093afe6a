package nft

import (
	"fmt"
	"iter"
	"slices"
	"strings"
)

// Transaction is a list of steps that the kernel carries out whole or not at all. The
// steps may concern several tables. It prints as a script for `nft -f`.
type Transaction struct {
	// Steps are carried out in this order.
	Steps []Step
	// Generation, if not 0, is the generation that the ruleset must have: see Conn.Generation. If another program has
	// committed since, Conn.Commit changes nothing and returns ErrGenerationMoved.
	Generation uint32
}

// Step is one change to one table.
type Step struct {
	// Op says which of the other fields count.
	Op StepOp
	// Table is the table that the step changes or whose parts it changes. AddTable uses its flags and its comment,
	// AdoptTable its flags, all others only Family and Name.
	Table *Table
	// Set is the set of a step on sets or elements. AddSet adds it without elements.
	Set *Set
	// Elements are the elements that AddElements adds or DeleteElements deletes. For DeleteElements only keys count.
	Elements []Element
	// All makes AddElements add all elements that Set has when the step is encoded or printed, instead of Elements.
	All bool
	// Chain is the chain of a step on chains or rules. AddChain adds it without rules, AddRules adds its rules.
	Chain *Chain
	// Handle is the handle of the rule that DeleteRule deletes: see KernelTable.
	Handle uint64
	// Object is the object that DeleteObject deletes.
	Object Object
}

// Len is the number of elements that the step adds or deletes.
func (s *Step) Len() int {
	if s.All {
		return s.Set.Len()
	}
	return len(s.Elements)
}

// EachElement returns the elements that the step adds or deletes, in no order.
func (s *Step) EachElement() iter.Seq[Element] {
	if s.All {
		return s.Set.each()
	}
	return slices.Values(s.Elements)
}

// StepOp is the operation of a step.
type StepOp uint8

// The operations. To delete something that is not there is an error, except with DestroyTable. To add something that is
// there already is an error only if it differs, such as a base chain at another hook or an element with another value.
// Rules are always appended.
const (
	AddTable StepOp = iota
	// DeleteTable deletes the table with all it holds.
	DeleteTable
	AddSet
	DeleteSet
	AddChain
	// FlushChain deletes the rules of the chain.
	FlushChain
	// DeleteChain deletes a chain without rules that nothing refers to.
	DeleteChain
	AddRules
	// DeleteRule deletes the rule of the chain that has the handle.
	DeleteRule
	AddElements
	DeleteElements
	// FlushSet deletes the elements of the set. Elements that the same transaction adds afterwards take their place at once:
	// packets find the old elements or the new elements.
	FlushSet
	// DeleteObject deletes a stateful object or flowtable that no rule and no element refers to.
	DeleteObject
	// DestroyTable deletes the table with all it holds, if it is there.
	DestroyTable
	// AdoptTable makes an orphan, a table with flag persist and without an owner, belong to the Conn that commits;
	// one that is not there, it adds.
	AdoptTable
)

// adds reports whether the step adds something, and deletes nothing.
func (s *Step) adds() bool { return strings.HasPrefix(stepNames[s.Op], "add") }

// stepNames are nft's words for the steps. The kind of a set or an object follows.
var stepNames = [...]string{
	AddTable: "add table", AdoptTable: "add table", DeleteTable: "delete table", DestroyTable: "delete table",
	AddSet: "add", DeleteSet: "delete", DeleteObject: "delete",
	FlushSet: "flush",
	AddChain: "add chain", FlushChain: "flush chain", DeleteChain: "delete chain",
	AddRules: "add rule", DeleteRule: "delete rule", AddElements: "add element", DeleteElements: "delete element",
}

// head returns the beginning of the step in nft's syntax, such as "add chain ip example forward".
func (s *Step) head() string {
	kind, name := "", ""
	switch s.Op {
	case AddSet, DeleteSet, FlushSet:
		kind, name = " "+s.Set.Kind(), s.Set.Name
	case DeleteObject:
		kind, name = " "+s.Object.Kind, s.Object.Name
	case AddElements, DeleteElements:
		name = s.Set.Name
	case AddChain, FlushChain, DeleteChain, AddRules, DeleteRule:
		name = s.Chain.Name
	}
	return strings.TrimSpace(fmt.Sprintf("%s%s %s %s %s", stepNames[s.Op], kind, s.Table.Family, s.Table.Name, name))
}

// Append adds the steps of another transaction, without its Generation.
func (tx *Transaction) Append(other Transaction) { tx.Steps = append(tx.Steps, other.Steps...) }

// Empty reports whether the transaction does nothing.
func (tx *Transaction) Empty() bool { return len(tx.Steps) == 0 }

// AddsTable reports whether the transaction adds a table, be it new or in place of one that it deletes.
func (tx *Transaction) AddsTable() bool {
	return slices.ContainsFunc(tx.Steps, func(s Step) bool { return s.Op == AddTable })
}

// String prints the transaction as a script for `nft -f` with the same effect. nft 1.0.6 does not know the flag
// persist, nor objects of a Kind "object-N".
func (tx Transaction) String() string {
	var b strings.Builder
	for _, s := range tx.Steps {
		s.appendText(&b)
	}
	return b.String()
}

// String prints the step in nft's syntax.
func (s Step) String() string {
	var b strings.Builder
	s.appendText(&b)
	return strings.TrimSuffix(b.String(), "\n")
}

func (s Step) appendText(b *strings.Builder) {
	head := s.head()
	switch s.Op {
	case DestroyTable:
		add := Step{Op: AddTable, Table: s.Table} // the word "destroy" would take nft 1.0.7
		fmt.Fprintf(b, "%s\n%s\n", add.head(), head)
	case AddTable:
		fmt.Fprintf(b, "%s%s\n", head, block(s.Table.properties()...))
	case AdoptTable:
		fmt.Fprintf(b, "%s%s\n", head, block(s.Table.flagsText()))
	case AddSet:
		fmt.Fprintf(b, "%s%s\n", head, block(s.Set.properties()...))
	case AddChain:
		fmt.Fprintf(b, "%s%s\n", head, block(s.Chain.header(), commentText(s.Chain.Comment)))
	case AddRules:
		for _, r := range s.Chain.Rules {
			fmt.Fprintf(b, "%s %s\n", head, r)
		}
	case DeleteRule:
		fmt.Fprintf(b, "%s handle %d\n", head, s.Handle)
	case AddElements, DeleteElements:
		fmt.Fprintf(b, "%s {\n", head)
		for _, e := range slices.SortedFunc(s.EachElement(), compareElements) {
			b.WriteByte('\t')
			s.appendElement(b, e)
			b.WriteString(",\n")
		}
		b.WriteString("}\n")
	default:
		b.WriteString(head + "\n")
	}
}

// block puts the parts that are not empty into braces. It returns "" if all are.
func block(parts ...string) string {
	parts = present(parts...)
	if len(parts) == 0 {
		return ""
	}
	return " { " + strings.Join(parts, "; ") + "; }"
}

// appendElement prints an element, of one to delete the key only.
func (s Step) appendElement(b *strings.Builder, e Element) {
	if s.Op == DeleteElements {
		s.Set.appendKey(b, e)
	} else {
		s.Set.appendElement(b, e)
	}
}
