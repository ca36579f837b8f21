package hostlimit

// Known is how many hosts are remembered.
func (l *Limiter) Known() int { return len(l.hosts) }

// Running returns how many jobs run.
func (l *Limiter) Running() int { return l.running }
