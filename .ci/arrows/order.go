package main

import "slices"

// order puts the files in an order, the top first, in which few arrows run up: none outside of
// circles. Of a circle, the file comes first that names most others and is named by fewest. Then
// single files move to where fewest arrows run up, until no move helps. The names of the files
// decide between equal ones, so the result is the same each time.
func (r *room) order() []int {
	var top []int
	for _, circle := range r.circles() {
		top = append(top, r.improved(r.greedy(circle))...)
	}
	return top
}

// count counts the arrows among files that are in an order, and those that run up in it.
func (r *room) count(order []int) (all, up int) {
	for i, from := range order {
		for j, to := range order {
			if r.arrow[from][to] {
				all++
				if j < i {
					up++
				}
			}
		}
	}
	return all, up
}

// circling counts the arrows that lie in circles.
func (r *room) circling() (arrows int) {
	for _, circle := range r.circles() {
		all, _ := r.count(circle)
		arrows += all
	}
	return arrows
}

// circles are the largest groups of files that all reach each other by arrows, the top first
// (Tarjan). A file that is in no circle is its own group.
func (r *room) circles() [][]int {
	const unseen = 0
	n := len(r.files)
	index, low, open := make([]int, n), make([]int, n), make([]bool, n)
	var stack []int
	var groups [][]int
	next := 1
	var visit func(v int)
	visit = func(v int) {
		index[v], low[v], open[v] = next, next, true
		next++
		stack = append(stack, v)
		for w := range n {
			if !r.arrow[v][w] {
				continue
			}
			if index[w] == unseen {
				visit(w)
			}
			if open[w] {
				low[v] = min(low[v], low[w])
			}
		}
		if low[v] == index[v] {
			at := slices.Index(stack, v)
			group := slices.Sorted(slices.Values(stack[at:]))
			for _, w := range group {
				open[w] = false
			}
			stack = stack[:at]
			groups = append(groups, group)
		}
	}
	for v := range n {
		if index[v] == unseen {
			visit(v)
		}
	}
	slices.Reverse(groups)
	return groups
}

// greedy takes, again and again, the file that names most of those left and is named by fewest of
// them.
func (r *room) greedy(files []int) []int {
	left, taken := slices.Clone(files), make([]int, 0, len(files))
	for len(left) > 0 {
		best, most := 0, -len(files)
		for i, v := range left {
			balance := 0
			for _, w := range left {
				if r.arrow[v][w] {
					balance++
				}
				if r.arrow[w][v] {
					balance--
				}
			}
			if balance > most {
				best, most = i, balance
			}
		}
		taken = append(taken, left[best])
		left = slices.Delete(left, best, best+1)
	}
	return taken
}

// improved moves single files while that makes fewer arrows run up.
func (r *room) improved(order []int) []int {
	for moved := true; moved; {
		moved = false
		for _, v := range slices.Clone(order) {
			at := slices.Index(order, v)
			others := slices.Delete(slices.Clone(order), at, at+1)
			// With v at the top, all that name it run up; each file that v passes on its way down
			// changes that.
			up, least, best, here := 0, 0, 0, 0
			for place := 0; place <= len(others); place++ {
				if place > 0 {
					passed := others[place-1]
					if r.arrow[passed][v] {
						up-- // it pointed up to v
					}
					if r.arrow[v][passed] {
						up++
					}
				}
				if place == at {
					here = up
				}
				if up < least {
					least, best = up, place
				}
			}
			if least < here {
				order, moved = slices.Insert(others, best, v), true
			}
		}
	}
	return order
}
