package stress

import "time"

// patience is how long to wait for anything that takes milliseconds on an idle machine.
const patience = 20 * time.Second
