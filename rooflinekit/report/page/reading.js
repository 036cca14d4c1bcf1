function tokens_time(tokens, dense, counts, times) {  // as in the loop: one by one, and on straight lines beyond
  if (tokens < dense.length) return dense(tokens);
  let low = 1, high = counts.length - 1;
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    if (tokens < counts[middle]) high = middle;
    else low = middle + 1;
  }
  const left = counts[low - 1], first = times(low - 1);
  return first + (times(low) - first) * (tokens - left) / (counts[low] - left);
}
function between(plane, row, column, x, y) {  // as in the loop: between four corners of a plane
  const low = plane(row, column) + (plane(row, column + 1) - plane(row, column)) * y;
  return low + (plane(row + 1, column) + (plane(row + 1, column + 1) - plane(row + 1, column)) * y - low) * x;
}
