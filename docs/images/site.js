// The theme lets wide tables scroll, and no key gets there: the keyboard stops at those that do.
const reached = new ResizeObserver(changes => {
  for (const {target} of changes) {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});
function improve() {
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap:not([role])")) {
    table.role = "group";
    table.ariaLabel = "Table";
    reached.observe(table);
  }
  // The button that copies a block is no navigation, and there are many.
  for (const buttons of document.querySelectorAll(".md-code__nav:not([role])")) buttons.role = "none";
}
// The theme makes both when it comes to it.
new MutationObserver(improve).observe(document.body, {childList: true, subtree: true});
improve();
