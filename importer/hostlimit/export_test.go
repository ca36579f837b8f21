package hostlimit

// Known is how many hosts are remembered.
func (l *Lanes) Known() int { return len(l.hosts) }

// Running returns how many jobs run.
func (l *Lanes) Running() int { return l.running }
