package nft

import "testing"

func TestTransactionSize(t *testing.T) {
	elements := make([]Element, 3)
	tx := Transaction{Steps: []Step{
		{Op: AddTable}, {Op: AddSet}, {Op: AddChain}, {Op: AddRules},
		{Op: AddElements, Elements: elements}, {Op: DeleteElements, Elements: elements[:2]},
		{Op: FlushChain}, {Op: DeleteChain},
	}}
	if elements, chains := tx.size(); elements != 5 || chains != 3 {
		t.Errorf("size() = %d elements, %d chains; want 5, 3", elements, chains)
	}
}
