package lanes

// Known is how many hosts are remembered.
func (l *Lanes) Known() int { return len(l.hosts) }
