// The editors, in one file with all of CodeMirror, which only the pages with an editor load.
export { makeEditor } from "./sql_editor";
export { makeYamlEditor } from "./yaml_editor";
